"""Where rows are: on which rank, in which slot there, and in which memory."""
