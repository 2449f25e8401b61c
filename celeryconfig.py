"""What this deployment changes of Celery's configuration. As shipped it changes nothing.

Every name in lower case is laid over the defaults in `dlpipe/defaults.py`, whole: a list or a dict replaces the one
that was there. Names that begin with an underscore, modules and functions are passed over. dlpipe's own settings do
not belong here but into the environment or `dlpipe.toml` (`dlpipe doctor` lists them); above all not `broker_url`,
which has to agree with where leases are kept.

Every process reads it when it starts: workers, beat, Flower, and whoever plans. It is found as the module
`celeryconfig` on Python's path: in a checkout this very file, elsewhere the one in a folder that PYTHONPATH names.
CELERY_CONFIG_MODULE names another module, which then must be there.

May be changed, for example:

    worker_concurrency = 16
    worker_max_tasks_per_child = 1_000
    worker_send_task_events = True
    worker_hijack_root_logger = False
    broker_pool_limit = 20

Tasks of your own beside those of dlpipe, on a queue and on a schedule of their own:

    from dlpipe import defaults, wiring
    from kombu import Queue

    _ours = defaults.config(wiring.settings())
    imports = ["my_company.tasks"]
    task_queues = [*_ours["task_queues"], Queue("ours", routing_key="ours")]
    task_routes = {**_ours["task_routes"], "my_company.*": {"queue": "ours"}}
    beat_schedule = {**_ours["beat_schedule"], "ours": {"task": "my_company.nightly", "schedule": 86_400.0}}

A worker without `-Q` takes from every queue in `task_queues`. How often dlpipe's own rounds run is a setting
(`dispatch.every_s`, `heal.every_s`).

Leave as they are: `task_serializer` and `accept_content` (messages are JSON, nothing else is read), `task_acks_late`
and `task_reject_on_worker_lost`, `result_backend` (results are in the ledger), `broker_transport_options` (see
docs/adr/0004), `worker_consumer` and `task_compression` (see docs/adr/0045), and the queues of the six stages: lost
messages are found by looking at the length of `net` and `disk`, as routes and `-Q` call them (`broker.queue_prefix`).
"""
