"""What benchmarks share; a folder for each that has parts of its own."""
