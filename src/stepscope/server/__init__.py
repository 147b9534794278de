"""The timeline in the browser: a web server on the loopback interface, and its page."""
