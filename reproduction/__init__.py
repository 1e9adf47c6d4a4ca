"""One file per figure or table of the papers: what is run, what comes out, and how it is drawn."""
