"""A consumer in a process of its own, so that a test can kill it.

member.py ADDRESS GROUP TOPIC [SETTING=VALUE]... prints a line whenever it is given partitions, and one
for each record that it has committed.
"""

import sys

import confluent_kafka


def main():
    address, group, topic, *settings = sys.argv[1:]
    source = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **dict(setting.split("=", 1) for setting in settings),
        }
    )

    def on_assign(_, partitions):
        print("assigned", *(partition.partition for partition in partitions), flush=True)

    source.subscribe([topic], on_assign=on_assign)
    while True:
        message = source.poll(0.2)
        if message is None:
            continue
        if message.error():
            sys.exit(str(message.error()))
        source.commit(message, asynchronous=False)
        print("committed", message.partition(), message.offset(), flush=True)


main()
