"""The door: who may ask, how much is let in, in which order and until when.

`admission.py` holds the way of one request through it, `door.py` the state behind; the other modules are pure: no
clock, no I/O, no HTTP.
"""
