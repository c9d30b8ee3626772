"""An application of Faust that counts the records of each key, in a process of its own.

counter.py ADDRESS APPLICATION FOLDER [SETTING=VALUE]... keeps the counts in a table, whose changelog gets the settings.
It prints the table once it has read its changelog.
"""

import json
import sys

import faust

address, name, folder, *settings = sys.argv[1:]
application = faust.App(
    name,
    broker=f"kafka://{address}",
    store="memory://",
    datadir=folder,
    topic_partitions=3,
    web_enabled=False,
    worker_redirect_stdouts=False,
    # The next process begins soon after a crash.
    broker_session_timeout=2,
    broker_heartbeat_interval=0.3,
    broker_commit_interval=0.2,
)
records = application.topic(f"{name}-in", key_type=str, value_type=str, key_serializer="raw", value_serializer="raw")
changelog = dict(setting.split("=", 1) for setting in settings)
counts = application.Table("counts", default=int, extra_topic_configs=changelog)


@application.agent(records)
async def count(stream):
    async for word, _ in stream.items():
        counts[word] += 1


@application.task
async def report():
    await application.tables.wait_until_recovery_completed()
    print(json.dumps(dict(counts)), flush=True)


application.finalize()
# Its progress goes to the log.
faust.Worker(application, loglevel="WARNING", stdout=sys.stderr).execute_from_commandline()
