"""Files of a run's folder, `async_dapo.report_dir`: written while it trains, read by its report and by the planner."""

RUN_FILE = "run.json"  # what was run
STEPS_FILE = "steps.jsonl"  # metrics, a line a step
LENGTHS_FILE = "lengths.jsonl"  # of responses, a line a group
RESPONSES_FILE = "responses.jsonl"  # a few of every step
SAMPLES_FILE = "timeline.jsonl"  # engines over time, a line a step
TIMELINE_FILE = "timeline.json"  # the same for Perfetto
REPORT_FILE = "report.html"
