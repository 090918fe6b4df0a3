package text

import (
	"crypto/md5" // as in message-db; nothing is kept secret with it
	"encoding/binary"
)

// Hash64 is message-db's hash_64, by which it divides a category among a consumer group: the first
// 8 bytes of the MD5 of s, big-endian.
func Hash64(s string) int64 {
	sum := md5.Sum([]byte(s))
	return int64(binary.BigEndian.Uint64(sum[:8])) // the same 64 bits, signed
}
