import os

rabbit_host = os.environ.get("RABBIT_HOST", "localhost")  # ours, not Celery's

broker_url = "pyamqp://guest:guest@%s:5672//" % rabbit_host
result_backend = "rpc://"

task_serializer = "json"
result_serializer = "json"
accept_content = ["json"]
timezone = "Europe/Lisbon"
enable_utc = True

task_routes = {
    "tasks.index_page": "low-priority",
}
task_annotations = {
    "tasks.index_page": {"rate_limit": "20/m"},
}
