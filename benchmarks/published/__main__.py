from benchmarks.published.run import main

main()
