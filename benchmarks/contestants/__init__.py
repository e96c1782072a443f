"""One file for each contestant of the benchmarks, and the process that each of them runs in."""
