"""Pages in a browser: `velodrome ui`, and the page of a model. Reads and starts what the commands do, and no more."""
