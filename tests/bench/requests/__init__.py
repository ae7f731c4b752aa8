"""How long each request holds the reactor while a broker has many topics and subscriptions.

``python -m tests.bench requests`` measures a broker process with a clock around its reactor, and
``test_requests.py`` counts the work of the same requests in memory. The modules:

- ``site``: what a catalogue needs of a broker: connections, and the longest tick of an action;
- ``catalogue``: the topics and subscriptions that are in place, and every request;
- ``processes``: the site of the benchmark; ``held_reactor`` runs in the broker's process;
- ``counted``: the site of the test.
"""
