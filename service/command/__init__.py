"""The `precedent` command: a bank of cases from the shell.

It needs neither the HTTP side nor, unless a search asks for a model, the retriever.
"""
