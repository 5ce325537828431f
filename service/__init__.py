"""The HTTP face of a trained retriever and a bank of cases.

`service.client` needs the standard library only; nothing here is imported with it.
"""
