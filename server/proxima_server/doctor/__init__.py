"""`proxima doctor`: what would keep this machine from serving, or from serving well, before an engine is started.

A check is a function from what is to be served, and where (:class:`Subject`), to findings with a remedy each. None of
them imports vLLM or torch: together they take about a second.
"""
