from benchmarks.gpu_record.run import main

main()
