"""`proxima top`: what a gateway does at this moment, in a terminal."""
