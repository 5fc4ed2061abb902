"""The files of the web page: plain HTML, CSS and JavaScript modules that browsers load as they are."""
