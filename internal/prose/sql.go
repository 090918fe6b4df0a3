package prose

import (
	"regexp"
	"strings"
)

var (
	comments  = regexp.MustCompile(`(?is)^comment\s+on\s+[^';]*\sis\s+(?:e?'|\$\w*\$)`)
	psqlGoose = regexp.MustCompile(`^\s*(?:\+|[a-z]+:\s*\S+$)`) // -- +goose Up, -- grant: dibs_writer
)

// SQL returns the sentences of an SQL file's comments, those in the bodies of
// functions and the texts of COMMENT ON among them.
func SQL(src []byte) []Sentence {
	var all []Sentence
	var group []word
	end := func() {
		all = append(all, sentences(paragraphs(prosaic(group)))...)
		group = nil
	}
	text, line := string(src), 1
	code := false // since the start of this line
	for i := 0; i < len(text); {
		rest := text[i:]
		switch {
		case text[i] == '\n':
			line++
			i++
			code = false
		case text[i] == ' ' || text[i] == '\t' || text[i] == '\r':
			i++
		case strings.HasPrefix(rest, "--"):
			comment, _, _ := strings.Cut(rest, "\n")
			if code || group == nil || group[len(group)-1].line != line-1 {
				end()
			}
			body := comment[2:]
			if psqlGoose.MatchString(body) {
				body = ""
			}
			group = append(group, word{body, line})
			if code {
				end()
			}
			i += len(comment)
		case strings.HasPrefix(rest, "/*"):
			end()
			comment, _, _ := strings.Cut(rest, "*/")
			group = block(line, comment)
			end()
			line += strings.Count(comment, "\n")
			i += min(len(comment)+2, len(rest))
		case rest[0] == '\'':
			end()
			n := quoted(rest)
			line += strings.Count(rest[:n], "\n")
			i += n
			code = true
		case (rest[0] == 'c' || rest[0] == 'C') && !code && comments.MatchString(rest):
			end()
			head := comments.FindString(rest)
			line += strings.Count(head, "\n")
			body, n := said(head, rest[len(head):])
			group = block(line, strings.ReplaceAll(body, "''", "'"))
			end()
			line += strings.Count(body, "\n")
			i += len(head) + n
			code = true
		default:
			end()
			i++
			code = true
		}
	}
	end()
	return all
}

// said takes the text off the front of the rest, which the head's last byte
// opened: a quote, or the dollar that ends a $tag$. It tells the bytes that the
// text takes with its end.
func said(head, rest string) (string, int) {
	if strings.HasSuffix(head, "'") {
		n := quoted("'"+rest) - 1
		return strings.TrimSuffix(rest[:n], "'"), n
	}
	tag := head[strings.LastIndex(head[:len(head)-1], "$"):]
	body, _, _ := strings.Cut(rest, tag)
	return body, min(len(body)+len(tag), len(rest))
}

// quoted is the length of the quoted text that the source starts with.
func quoted(source string) int {
	for i := 1; i < len(source); i++ {
		if source[i] != '\'' {
			continue
		}
		if i+1 < len(source) && source[i+1] == '\'' {
			i++
			continue
		}
		return i + 1
	}
	return len(source)
}
