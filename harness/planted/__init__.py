"""Does a retriever find the truth of a log whose truth is known?"""
