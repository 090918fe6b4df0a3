package prose

import (
	"go/scanner"
	"go/token"
	"regexp"
	"strings"
)

// Go returns the sentences of a Go file's comments. Generated files have none;
// directives, code and licences in comments are left out, and so is the output
// that an example promises.
func Go(src []byte) []Sentence {
	if generated.Match(src) {
		return nil
	}
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(src))
	var scan scanner.Scanner
	scan.Init(file, src, func(token.Position, string) {}, scanner.ScanComments)

	var all []Sentence
	var group []word // lines of comments that belong together
	last := 0        // line of the last token
	end := func() {
		all = append(all, sentences(paragraphs(prosaic(group)))...)
		group = nil
	}
	for {
		pos, tok, text := scan.Scan()
		if tok == token.EOF {
			end()
			return all
		}
		line := file.Line(pos)
		switch {
		case tok != token.COMMENT:
			if tok != token.SEMICOLON || text != "\n" { // one of the scanner's own is no code
				end()
				last = line + strings.Count(text, "\n")
			}
			continue
		case strings.HasPrefix(text, "/*"):
			end()
			group = block(line, text)
			end()
			continue
		case last == line || group == nil || group[len(group)-1].line != line-1:
			end()
		}
		group = append(group, word{strings.TrimPrefix(text, "//"), line})
		if last == line { // beside code: the next line is another comment
			end()
		}
	}
}

var (
	generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)
	directive = regexp.MustCompile(`^(?:[a-z0-9]+:[a-z0-9]|line |export |extern |nolint|#nosec| *\+build )`)
	output    = regexp.MustCompile(`(?i)^\s*(?:unordered )?output:`)
)

// block is the text of a comment between /* and */, line by line.
func block(line int, text string) []word {
	var all []word
	text = strings.TrimSuffix(strings.TrimPrefix(text, "/*"), "*/")
	for i, part := range strings.Split(text, "\n") {
		if trimmed := strings.TrimLeft(part, " \t"); strings.HasPrefix(trimmed, "* ") || trimmed == "*" {
			part = trimmed[1:]
		}
		all = append(all, word{" " + strings.TrimSpace(part), line + i})
	}
	return all
}

// prosaic leaves out of a comment the lines that are no prose.
func prosaic(group []word) []word {
	var all []word
	inItem := false
	for _, line := range group {
		if output.MatchString(line.text) {
			return all
		}
		if license.MatchString(line.text) {
			return nil
		}
		text := strings.TrimSpace(line.text)
		indented := strings.HasPrefix(line.text, "\t") || strings.HasPrefix(line.text, "  ") || strings.HasPrefix(line.text, " \t")
		isItem := item.MatchString(text)
		inItem = isItem || inItem && indented && text != ""
		switch {
		case directive.MatchString(line.text):
			line.text = ""
		case indented && !inItem: // code, as go doc shows it
			line.text = ""
		}
		all = append(all, line)
	}
	return all
}
