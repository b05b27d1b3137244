"""Shows trainings in the browser, and takes requests from there."""
