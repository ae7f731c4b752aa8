"""The Spark pipeline: the data source and sink ``pubsub``, and a session to use them with.

Needs the extra ``spark``. Nothing here imports a reactor, and the broker imports nothing of it.
"""
