from benchmarks.engine_bound.run import main

main()
