package transfer

import (
	"context"

	"github.com/dibs-go/dibs/messagestore"
)

// The commands to the bank. The bank's API has one address for both, so their JSON has the field
// do. Both have the order's id, by which the bank recognizes a repeated command.
type (
	// PayOrder asks the bank to pay.
	PayOrder struct {
		Do     string `json:"do"` // "pay"
		Order  string `json:"order"`
		From   string `json:"from"`
		To     string `json:"to"`
		Amount int64  `json:"amount"`
	}

	// CancelOrder asks the bank not to pay, or to take the payment back.
	CancelOrder struct {
		Do    string `json:"do"` // "cancel"
		Order string `json:"order"`
	}
)

// MessageType implements [messagestore.Body].
func (PayOrder) MessageType() string { return "PayOrder" }

// MessageType implements [messagestore.Body].
func (CancelOrder) MessageType() string { return "CancelOrder" }

// payOrder is the command of the step. Both commands of an order are in one stream, so they are
// sent in order.
func payOrder(_ context.Context, t Transfer) (messagestore.StreamWrite, error) {
	return messagestore.To(Outgoing.Stream(t.ID), messagestore.AnyVersion, PayOrder{"pay", t.ID, t.From, t.To, t.Amount}), nil
}

// cancelOrder does not look at the receipt: if the bank's answer is unknown, the bank may have
// paid, or may pay later.
func cancelOrder(_ context.Context, t Transfer, _ *Receipt) (messagestore.StreamWrite, error) {
	return messagestore.To(Outgoing.Stream(t.ID), messagestore.AnyVersion, CancelOrder{"cancel", t.ID}), nil
}

// A Notice is the body of the bank's webhook.
type Notice struct {
	ID      string `json:"id"` // the same for every copy
	Order   string `json:"order"`
	Outcome string `json:"outcome"` // paid, refused or cancelled
	Number  int64  `json:"number,omitempty"`
	Reason  string `json:"reason,omitempty"`
}

// reply returns the writes that tell the saga of a notice. A transfer that is undone waits for no
// notice: it is undone, whether the bank has cancelled before or after.
func (s *Service[Tx]) reply(n Notice) []messagestore.StreamWrite {
	switch n.Outcome {
	case "paid":
		return []messagestore.StreamWrite{s.Transfers.Reply(n.Order, "paid", Receipt{n.Number})}
	case "refused":
		return []messagestore.StreamWrite{s.Transfers.Refuse(n.Order, "paid", n.Reason)}
	}
	return nil
}
