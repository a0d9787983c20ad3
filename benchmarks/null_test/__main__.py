from benchmarks.null_test.run import main

main()
