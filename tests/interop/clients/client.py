"""Publishes payloads to a queue, or consumes them, as a service in Python does that knows nothing of windlass.

    client.py publish URI QUEUE HOW         one payload in JSON per line of standard input
    client.py consume URI QUEUE HOW COUNT   one payload in JSON per line of standard output

HOW is `always` (lz4 blocks behind their length, no label), `frame` or `label` (a frame, or a block, with its label) or
`plain`.
"""

import json
import sys

import lz4.block
import lz4.frame
import pika

LABELS = {"label": "lz4", "frame": "lz4-frame"}


def pack(body, how):
    if how == "plain":
        return body
    return lz4.frame.compress(body) if how == "frame" else lz4.block.compress(body, store_size=True)


def unpack(body, label, how):
    if how == "always" or label == "lz4":
        return lz4.block.decompress(body)
    if label == "lz4-frame":
        return lz4.frame.decompress(body)
    assert label is None, label
    return body


def publish(channel, queue, how):
    channel.confirm_delivery()
    for line in sys.stdin:
        body = pack(json.dumps(json.loads(line)).encode(), how)
        properties = pika.BasicProperties(content_type="application/json", content_encoding=LABELS.get(how))
        channel.basic_publish("", queue, body, properties, mandatory=True)


def consume(channel, queue, how, count):
    for method, properties, body in channel.consume(queue, inactivity_timeout=15):
        assert method is not None, "nothing came"
        assert properties.content_type == "application/json", properties
        payload = json.loads(unpack(body, properties.content_encoding, how))
        print(json.dumps({"payload": payload, "label": properties.content_encoding}), flush=True)
        channel.basic_ack(method.delivery_tag)
        count -= 1
        if count == 0:
            break
    channel.cancel()


verb, uri, queue, how, *rest = sys.argv[1:]
connection = pika.BlockingConnection(pika.URLParameters(uri))
if verb == "publish":
    publish(connection.channel(), queue, how)
else:
    consume(connection.channel(), queue, how, int(rest[0]))
connection.close()
