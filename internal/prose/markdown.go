package prose

import (
	"regexp"
	"strings"
)

var (
	fence  = regexp.MustCompile("^\\s*(?:>\\s*)?(```+|~~~+)")
	aside  = regexp.MustCompile(`(?s)<!--.*?-->`)
	inCode = regexp.MustCompile("`+[^`\n]+`+")
)

// Markdown returns the sentences of a page: of its paragraphs, headings, items
// of lists and cells of tables. Code, links and comments are left out.
func Markdown(src []byte) []Sentence {
	src = aside.ReplaceAllFunc(src, func(comment []byte) []byte {
		return []byte(strings.Repeat("\n", strings.Count(string(comment), "\n")))
	})
	var all []paragraph
	var running []word
	end := func() {
		all = append(all, paragraphs(running)...)
		running = nil
	}
	closing := ""
	for _, line := range lines(src) {
		text := strings.TrimSpace(line.text)
		mark := fence.FindStringSubmatch(line.text)
		switch {
		case closing != "":
			if mark != nil && strings.HasPrefix(mark[1], closing) {
				closing = ""
			}
			continue
		case mark != nil:
			end()
			closing = mark[1]
			continue
		}
		text = strings.TrimLeft(text, "> ")
		text = inCode.ReplaceAllString(text, "`code`")
		if strings.HasPrefix(text, "|") {
			end()
			for cell := range strings.SplitSeq(strings.Trim(text, "|"), "|") {
				all = append(all, paragraphs([]word{{cell, line.line}})...)
			}
			continue
		}
		running = append(running, word{text, line.line})
	}
	end()
	return sentences(all)
}
