"""The Spark pipeline: the data source and sink ``pubsub``, its jobs, and a Spark session.

The package needs the extra ``spark``. It imports no reactor, and the broker does not import it.
"""
