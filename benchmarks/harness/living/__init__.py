"""Parts of the `living` benchmarks: data that drifts, and what ranks do with it."""
