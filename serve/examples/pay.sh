#!/usr/bin/env bash
# Pays an order once, with curl and jq: examples/pay.sh http://127.0.0.1:7070
set -euo pipefail
base=${1:-http://127.0.0.1:7070}
call() {
	curl -sS --fail-with-body -H 'Content-Type: application/json' ${DIBS_KEY:+-H "Authorization: Bearer $DIBS_KEY"} -d "$2" "$base/dibs.v1.$1"
}
uuid() { cat /proc/sys/kernel/random/uuid; }

queue='{"category":"shell"}'
order='{"order":1,"amount":10}'
call QueueService/Produce "$(jq -nc --argjson q "$queue" --arg id "$(uuid)" --arg data "$order" '{queue: $q, items: [{id: $id, type: "Pay", dataJson: $data}]}')" >/dev/null
received=$(call QueueService/Receive "$(jq -nc --argjson q "$queue" --arg id "$(uuid)" '{queue: $q, receiveId: $id, maxWait: "10s"}')")
delivery=$(jq -r '.deliveries[0].deliveryId' <<<"$received")
name=$(jq -c '{category: "shell:intent", key: .deliveries[0].item.id}' <<<"$received")

answer=$(call IntentService/Reserve "$(jq -nc --argjson n "$name" --arg s "$(uuid)" --arg c "$order" '{name: $n, sessionId: $s, contentJson: $c}')")
if [ "$(jq -r .outcome <<<"$answer")" = OUTCOME_RESERVED ]; then
	# here the money moves
	call IntentService/Confirm "$(jq -c '{lease, resultJson: "{\"receipt\":1}"}' <<<"$answer")" | jq -r .outcome
fi
call QueueService/Settle "$(jq -nc --argjson q "$queue" --arg d "$delivery" '{queue: $q, settlements: [{deliveryId: $d, complete: {}}]}')" | jq -r '.outcomes[0]'
echo "paid 1 order"
