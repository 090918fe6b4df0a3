"""Pays orders, each once, with nothing but Python's standard library: python3 pay.py http://127.0.0.1:7070"""
import json
import os
import sys
import urllib.request
import uuid

base = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:7070"


def call(method, **body):
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("DIBS_KEY"):
        headers["Authorization"] = "Bearer " + key
    request = urllib.request.Request(f"{base}/dibs.v1.{method}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


queue, paid = {"category": "python"}, 0
orders = [{"id": str(uuid.uuid4()), "type": "Pay", "dataJson": json.dumps({"order": n, "amount": 10 * n})} for n in (1, 2, 3)]
call("QueueService/Produce", queue=queue, items=orders)
while paid < 3:
    received = call("QueueService/Receive", queue=queue, receiveId=str(uuid.uuid4()), maxItems=10, maxWait="10s")
    for delivery in received["deliveries"]:
        item = delivery["item"]
        order = json.loads(item["dataJson"])
        name = {"category": "python:intent", "key": f"order {order['order']} {item['id']}"}
        answer = call("IntentService/Reserve", name=name, sessionId=str(uuid.uuid4()), contentJson=item["dataJson"])
        if answer["outcome"] == "OUTCOME_RESERVED":
            result = json.dumps({"receipt": order["order"]})  # here the money moves
            confirmed = call("IntentService/Confirm", lease=answer["lease"], resultJson=result)
            print("order", order["order"], confirmed["outcome"])
        settled = call("QueueService/Settle", queue=queue, settlements=[{"deliveryId": delivery["deliveryId"], "complete": {}}])
        paid += settled["outcomes"][0] == "SETTLEMENT_OUTCOME_DONE"
print("paid 3 orders")
