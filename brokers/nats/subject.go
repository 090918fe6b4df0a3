package natsbroker

import (
	"fmt"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

// MaxSubjectBytes bounds the subject of a message. A server takes subjects of up to some 4,000
// bytes. Only a relay's Topic can make it longer: a category and a key always fit.
const MaxSubjectBytes = 2048

// emptyToken stands for an empty text. No other token has a percent sign without digits.
const emptyToken = "%"

// Escape returns a text as one token of a subject. ASCII letters and digits, and - _ : + stay, and
// every other byte is percent-encoded. The empty text becomes a single percent sign. Different
// texts have different tokens.
func Escape(text string) string {
	if text == "" {
		return emptyToken
	}
	if strings.IndexFunc(text, func(r rune) bool { return r >= utf8.RuneSelf || !plain(byte(r)) }) < 0 {
		return text
	}
	var b strings.Builder
	for i := range len(text) {
		if c := text[i]; plain(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func plain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_:+", c) >= 0
}

// Unescape reverses [Escape]. The error matches [messagestore.ErrInvalid] if token is not from
// Escape.
func Unescape(token string) (string, error) {
	if token == emptyToken {
		return "", nil
	}
	text, err := url.PathUnescape(token)
	if err != nil || Escape(text) != token {
		return "", messagestore.NewInvalidError("token", token, "must be written by Escape")
	}
	return text, nil
}

// subject returns the subject of a message.
func (s *Sink) subject(m *outbox.Message) (string, error) {
	subject := Escape(m.Topic) + "." + Escape(m.Key())
	if s.config.Prefix != "" {
		subject = s.config.Prefix + "." + subject
	}
	if len(subject) > MaxSubjectBytes {
		return "", handler.Refuse(messagestore.NewInvalidError("subject", subject, fmt.Sprintf("must be at most %d bytes, and is %d", MaxSubjectBytes, len(subject))))
	}
	return subject, nil
}

// prefixRule returns the rule that a prefix breaks, or "".
func prefixRule(prefix string) string {
	switch {
	case len(prefix) > maxPrefix:
		return fmt.Sprintf("must be at most %d bytes, and is %d", maxPrefix, len(prefix))
	case strings.HasPrefix(prefix, "$"):
		return "must not begin with $, as the server's own subjects do"
	}
	for token := range strings.SplitSeq(prefix, ".") {
		if token == "" {
			return "must not have an empty token"
		}
		if strings.IndexFunc(token, func(c rune) bool { return c <= ' ' || c > '~' || c == '*' || c == '>' }) >= 0 {
			return "must be ASCII without a wildcard or a space"
		}
	}
	return ""
}
