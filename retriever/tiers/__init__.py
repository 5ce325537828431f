"""FAISS tiers: which index a bank gets, and how each kind is kept right under change.

From the ground up: `settings` and `plan` say which index; `tier` is what each kind does (`flat`,
`ivf`, `graph`, `gpu`), `making` makes one; `space` turns rows into what is indexed (`linear_form`
for the head); `tier_copy` follows a bank's blocks, `tier_index` adds saving and loading. The doors
are in `retriever.index`. `narrowing` leaves of many candidates those worth an exact score.
"""
