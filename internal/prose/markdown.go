package prose

import (
	"fmt"
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

// MaxCell is how many characters a cell of a table may have: no cell of more
// can be read, or commented on.
const MaxCell = 300

// Problem is a line of a page whose layout is not ours.
type Problem struct {
	Line int
	Text string
}

// Layout finds lines with more than one sentence, sentences on more than one
// line, and cells of tables that are too long. A bold lead-in may share its
// sentence's line.
func Layout(src []byte) []Problem {
	var found []Problem
	closing, comment := "", false
	open := 0 // the line before, if its sentence has not ended
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
			closing, open = mark[1], 0
			continue
		case comment || strings.HasPrefix(text, "<"):
			comment = strings.Contains(text, "<!--") && !strings.Contains(text, "-->") || comment && !strings.Contains(text, "-->")
			open = 0
			continue
		case strings.HasPrefix(text, "|"):
			found = append(found, cells(line.line, text)...)
			open = 0
			continue
		case text == "" || heading.MatchString(text) || definition.MatchString(text):
			open = 0
			continue
		}
		if open > 0 && !item.MatchString(text) {
			found = append(found, Problem{open, "a sentence that goes on in the next line"})
		}
		words := strings.Fields(plain(item.ReplaceAllString(text, "")))
		for i := range len(words) - 1 {
			if ends(words[i]) && !leadIn.MatchString(words[i]) && starts(words[i+1]) {
				found = append(found, Problem{line.line, "two sentences in a line: " + words[i] + " " + words[i+1]})
			}
		}
		open = 0
		if len(words) == 0 {
			continue
		}
		open = line.line
		if last := words[len(words)-1]; ends(last) || strings.ContainsRune(":;", rune(last[len(last)-1])) {
			open = 0
		}
	}
	return found
}

var (
	leadIn = regexp.MustCompile(`[.!?:]\*+$`)
	target = regexp.MustCompile(`\]\([^)]*\)`)
)

// plain is a line's text with code and links as one word each.
func plain(text string) string {
	return target.ReplaceAllString(inCode.ReplaceAllString(text, "`code`"), "]")
}

func cells(line int, row string) []Problem {
	var found []Problem
	for cell := range strings.SplitSeq(strings.ReplaceAll(row, `\|`, "_"), "|") {
		if n := len([]rune(strings.TrimSpace(cell))); n > MaxCell {
			found = append(found, Problem{line, fmt.Sprintf("a cell of %d characters, more than %d", n, MaxCell)})
		}
	}
	return found
}
