"""Settings of a training program that ``stepscope whatif --set`` can try, one file each."""
