"""What the gateway and its engine do at this moment, for people who look: the web page, `proxima top`, scripts."""
