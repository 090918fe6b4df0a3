package testkit

import "strings"

// SeedNames returns texts as seeds for fuzz tests, which grammars and databases treat differently.
// Most begin with "cat-".
func SeedNames() []string {
	return []string{
		"-",
		"cat-+x",                          // the cardinal id is empty
		"cat-1\r\n",                       // a line end
		"cat-1\u00a0",                     // a no-break space
		"cat-\x00",                        // NUL
		"cat-e\u0301",                     // a combining accent
		"cat-\u202e1",                     // a bidirectional override
		"\ufeffcat-1",                     // a byte order mark
		"cat-\u0378",                      // unassigned
		"cat-\uffff",                      // a noncharacter
		"cat-\U000e0041",                  // an invisible tag
		"cat-\xc0\x80",                    // UTF-8: overlong
		"cat-\xed\xa0\x80",                // UTF-8: a surrogate
		"cat-" + strings.Repeat("x", 251), // the longest stream name
		"cat-" + strings.Repeat("x", 252), // one byte too long
	}
}

// SeedJSON returns texts that readers of JSON treat differently: objects with a member of the given
// name, and a few invalid texts.
func SeedJSON(name string) []string {
	member := `{"` + name + `":`
	return []string{
		member + `"` + "\u202e" + `"}`,   // a bidirectional override
		member + `"` + "\xc0\x80" + `"}`, // UTF-8: overlong
		member + `"\u0000"}`,             // NUL
		member + `"\\u0000"}`,            // the text of an escape
		member + `"\ud800"}`,             // a surrogate alone
		member + `"\ud83d\ude00"}`,       // a pair of surrogates
		member + `1e400}`,                // not a float64
		member + `1e131072}`,             // not a numeric of PostgreSQL
		member + `0e99999999999}`,
		member + `0.` + strings.Repeat("0", 40) + `1}`,
		member + `-0}`,
		member + `1,}`,                     // a trailing comma
		member + `1,"` + name + `":2}`,     // a name twice
		"{\r\n\"" + name + "\"\r\n:1\r\n}", // line ends of another system
		"\ufeff{}",                         // a byte order mark
		"{}{}",                             // two documents
		strings.Repeat("[", 513) + strings.Repeat("]", 513),
		strings.Repeat(member, 12) + "1" + strings.Repeat("}", 12),
	}
}

// SeedJSONTexts returns texts of every kind of JSON, and some that are nearly JSON.
func SeedJSONTexts() []string {
	return []string{
		`{}`, `[]`, `null`, `1`, `"x"`, ``, ` {"a" : [1, -0.10e+2, null, true, "\u00e9\ud83d\ude00\/\\"]} `, `{"a":"\u0000"}`, `{"a":"\ud800"}`, `{"a":"\udc00x"}`, `{"a":"\ud800\u0041"}`,
		`{"a":1e400}`, `{"a":1e200000}`, `{"a":1e-16384}`, `{"a":0e99999999999}`, `{"a":1,"a":2}`, `{"a":1}{}`, "{\"a\":\"\xff\"}", "\ufeff{}", `{"a":"\\u0000"}`, `{"\u0000":1}`,
		`{"a":"\ud991/1800"}`, `{"a":9990e99999999999}`, `"\u0000"0`, `nul`, `{"a":1}10`, `{"a":"x`, `{"a":}`, "\u200a{}",
		`{"n":12345678901234567890.123456789}`, strings.Repeat(`{"a":`, 513) + "1" + strings.Repeat("}", 513),
	}
}
