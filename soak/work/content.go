package work

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/dibs-go/dibs/messagestore"
)

// Events returns the i-th category that writers write events to.
func Events(i int) messagestore.Category {
	return messagestore.Category("account" + strconv.Itoa(i))
}

// The categories of commands with idempotence keys.
const (
	Orders   messagestore.Category = "order:command"   // reserved by Copy
	Payments messagestore.Category = "payment:command" // reserved by Inline
)

// The types of messages.
const (
	eventType  = "Happened"
	PoisonType = "Poison" // what some consumers park
)

// Canary is in every message and in every password; log lines must never have it.
const Canary = "canary-5e1f7a"

// A content makes messages of any size with hostile content. It has one user.
type content struct {
	random *rand.Rand
	prefix uint64 // of the values of this process and goroutine
	count  uint64
	max    int
}

// value returns a number that no other call returns.
func (c *content) value() uint64 {
	c.count++
	return c.prefix | c.count
}

// body makes an event.
func (c *content) body() messagestore.Raw {
	messageType := eventType
	if c.random.IntN(500) == 0 {
		messageType = PoisonType
	}
	return messagestore.Raw{Type: messageType, Data: c.data(c.value(), c.size())}
}

// size is spread evenly over the orders of magnitude, and seldom large; once in a while it is all
// there may be.
func (c *content) size() int {
	if c.random.IntN(5000) == 0 {
		return c.max
	}
	most := 2 << 10
	switch c.random.IntN(1000) {
	case 0:
		most = c.max
	case 1, 2, 3, 4, 5, 6, 7, 8, 9:
		most = min(c.max, 64<<10)
	}
	return int(math.Exp(c.random.Float64() * math.Log(float64(most))))
}

func (c *content) data(value uint64, size int) json.RawMessage {
	var b strings.Builder
	fmt.Fprintf(&b, `{"value":%d`, value)
	switch c.random.IntN(6) {
	case 0:
		b.WriteString(`,"n":[12345678901234567890.123456789,-0.0,1e400,0.1e-3,9223372036854775808,1E+2]`)
	case 1:
		b.WriteString(`,"":{"a":null,"\\u0041":true,"key\"with\\all":"\/\b\f\n\r\t"}`)
	case 2:
		b.WriteString(`,"deep":` + strings.Repeat(`[{"":`, 20) + `0` + strings.Repeat(`}]`, 20))
	}
	b.WriteString(`,"text":"` + Canary)
	const longest, end = 64, `"}` // of a piece of text
	for b.Len() < size-longest {
		c.text(&b)
	}
	for b.Len() < size-len(end) {
		b.WriteByte('x')
	}
	b.WriteString(end)
	return json.RawMessage(b.String())
}

// text writes a few characters of a random plane of Unicode.
func (c *content) text(b *strings.Builder) {
	switch c.random.IntN(5) {
	case 0:
		fmt.Fprintf(b, `\u%04x`, 1+c.random.IntN(0xd7ff))
	case 1:
		first := rune(0x10000 + c.random.IntN(0x100000-64))
		for i := range rune(8) {
			b.WriteRune(first + i)
		}
	case 2:
		b.WriteString(`'; drop table messages;-- %s $1 \\ {{`)
	default:
		for range 32 {
			b.WriteByte(byte('a' + c.random.IntN(26)))
		}
	}
}

// name makes the i-th name of a stream. Two of each sixteen are hostile.
func name(category messagestore.Category, i uint64) messagestore.StreamName {
	switch i % 16 {
	case 3:
		return category.Stream(fmt.Sprintf("%d'; --%%s", i))
	case 7:
		return category.Stream(fmt.Sprintf("%d-é😀\\x", i))
	}
	return category.Stream(strconv.FormatUint(i, 10))
}
