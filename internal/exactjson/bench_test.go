package exactjson_test

import (
	"encoding/json"
	"testing"

	"github.com/dibs-go/dibs/internal/exactjson"
)

func BenchmarkCanonical(b *testing.B) {
	raw := json.RawMessage(`{"method":"POST","path":"/payments","key":"0193a2b4-5c6d-7e8f-9a0b-1c2d3e4f5a6b","amount":245200}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := exactjson.Canonical(raw); err != nil {
			b.Fatal(err)
		}
	}
}
