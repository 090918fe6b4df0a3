package work

import (
	"encoding/json"
	"fmt"

	"github.com/dibs-go/dibs/messagestore"
)

// commandType is the message type of [Do], the command whose messages this file makes and reads.
const commandType = "Do"

// Do is a command with an idempotence key.
type Do struct {
	Value  uint64 `json:"value"`
	Key    string `json:"key"`
	Amount int    `json:"amount"`
}

// MessageType implements [messagestore.Body]. It never changes.
func (Do) MessageType() string { return commandType }

// key is the command's.
func (d Do) key() string { return d.Key }

func newCommand(value uint64, key string, amount int) messagestore.Raw {
	data, err := json.Marshal(Do{value, key, amount})
	if err != nil {
		panic(err) // it has no field that does not encode
	}
	return messagestore.Raw{Type: commandType, Data: data}
}

func keyOf(data json.RawMessage) (string, error) {
	var d Do
	if err := json.Unmarshal(data, &d); err != nil {
		return "", fmt.Errorf("a command: %w", err)
	}
	return d.Key, nil
}
