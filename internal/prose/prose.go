// Package prose takes the sentences out of comments and Markdown, and finds
// those with a free pronoun: a "who" or "what" that asks no question and so stands
// for something that a plain sentence names. It counts every such word, good
// uses too, because it has no grammar; as it does so for every project alike,
// shares can be compared.
package prose

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MinWords is how many words a sentence has at least to be counted: fragments
// such as "in bytes" tell nothing about style.
const MinWords = 5

// Sentence is one of at least MinWords words.
type Sentence struct {
	Line int // where it starts
	Text string
	Free bool   // has a free pronoun
	Old  string // a phrase that docs/naming.md has a word for, and that word; "" if none
}

var free = regexp.MustCompile(`(?i)\b(what|who|whom|whoever|whatever)\b`)

// isFree tells whether a sentence has one of the words and asks no question.
func isFree(sentence string) bool {
	return !strings.HasSuffix(strings.TrimRight(sentence, `)"'*_”`), "?") && free.MatchString(sentence)
}

// The phrases that docs/naming.md replaces, and their replacements.
var replaced = []struct {
	phrase  *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`(?i)\bhand(s|ed|ing)? (it |them |that |messages? )?over\b`), "deliver"},
	{regexp.MustCompile(`(?i)\bin hand\b|\bin the hands of\b`), "in flight"},
	{regexp.MustCompile(`(?i)\b(store|database)( that)? (went|has gone|had gone|goes) back\b`), "rollback of the store"},
	{regexp.MustCompile(`(?i)\bturn(s|ed|ing)? away\b`), "refused, fenced"},
	{regexp.MustCompile(`\b((?i:bells?|rung)|rang)\b`), "wake-up"},
	{regexp.MustCompile(`(?i)\brecorded positions?\b|\brecord(s|ed|ing)? (its|a|the|his|their) positions?\b`), "checkpoint"},
	{regexp.MustCompile(`(?i)\b(somebody|nobody)\b`), "caller, sender, handler, operator, session"},
}

func oldWord(sentence string) string {
	for _, r := range replaced {
		if phrase := r.phrase.FindString(sentence); phrase != "" {
			return phrase + " -> " + r.instead
		}
	}
	return ""
}

// File returns the sentences of a file, by the end of its name: .go, .sql or
// .md. Any other file has none.
func File(path string, src []byte) []Sentence {
	switch filepath.Ext(path) {
	case ".go":
		return Go(src)
	case ".sql":
		return SQL(src)
	case ".md":
		return Markdown(src)
	}
	return nil
}

// Found is a sentence and its file.
type Found struct {
	Path string
	Sentence
}

func (f Found) String() string { return fmt.Sprintf("%s:%d: %s", f.Path, f.Line, f.Text) }

// Share is the number of sentences, and those with a free pronoun.
type Share struct {
	Sentences int
	Free      []Found
	Old       []Found // those with a phrase that docs/naming.md replaces
}

// Percent is the share of sentences with a free pronoun.
func (s Share) Percent() float64 {
	if s.Sentences == 0 {
		return 0
	}
	return 100 * float64(len(s.Free)) / float64(s.Sentences)
}

// Count reads a file, or all files below a folder, whose path below root keep
// wants; a nil keep wants all. Folders of other people's files are left out:
// hidden ones, testdata, vendor and node_modules.
func Count(root string, keep func(path string) bool) (Share, error) {
	var share Share
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && isApart(entry.Name()):
			return filepath.SkipDir
		case entry.IsDir() || keep != nil && !keep(path):
			return nil
		}
		return share.add(path)
	})
	return share, err
}

func (s *Share) add(path string) error {
	switch filepath.Ext(path) {
	case ".go", ".sql", ".md":
	default:
		return nil
	}
	src, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for _, sentence := range File(path, src) {
		s.Sentences++
		if sentence.Free {
			s.Free = append(s.Free, Found{path, sentence})
		}
		if sentence.Old != "" {
			s.Old = append(s.Old, Found{path, sentence})
		}
	}
	return nil
}

func isApart(name string) bool {
	return strings.HasPrefix(name, ".") && name != "." && name != ".." ||
		name == "testdata" || name == "vendor" || name == "node_modules"
}

// A paragraph is a run of words, each with its line.
type paragraph []word

type word struct {
	text string
	line int
}

func (p paragraph) with(line int, text string) paragraph {
	for field := range strings.FieldsSeq(text) {
		p = append(p, word{field, line})
	}
	return p
}

// sentences cuts paragraphs at full stops, exclamation and question marks. A
// mark ends a sentence if the next word starts as sentences do.
func sentences(paragraphs []paragraph) []Sentence {
	var found []Sentence
	for _, words := range paragraphs {
		from := 0
		for i := range words {
			if i+1 < len(words) && (!ends(words[i].text) || !starts(words[i+1].text)) {
				continue
			}
			if sentence, counts := newSentence(words[from : i+1]); counts {
				found = append(found, sentence)
			}
			from = i + 1
		}
	}
	return found
}

func newSentence(words paragraph) (Sentence, bool) {
	texts, count := make([]string, len(words)), 0
	for i, word := range words {
		texts[i] = word.text
		if strings.ContainsFunc(word.text, unicode.IsLetter) {
			count++
		}
	}
	if count < MinWords {
		return Sentence{}, false
	}
	text := strings.Join(texts, " ")
	return Sentence{words[0].line, text, isFree(text), oldWord(text)}, true
}

var abbreviations = map[string]bool{"e.g.": true, "i.e.": true, "etc.": true, "vs.": true, "cf.": true, "resp.": true}

func ends(word string) bool {
	word = strings.TrimRight(word, "\"'`)]*_”’")
	return word != "" && strings.ContainsRune(".!?", rune(word[len(word)-1])) &&
		!abbreviations[strings.ToLower(strings.TrimLeft(word, `("'`))]
}

func starts(word string) bool {
	first, _ := utf8.DecodeRuneInString(strings.TrimLeft(word, "\"'*_(“‘"))
	return unicode.IsUpper(first) || unicode.IsDigit(first) || strings.ContainsRune("`[", first)
}

// A text's lines become paragraphs. Blank lines, headings and the items of
// lists part them; code, links and rules are left out.
func paragraphs(lines []word) []paragraph {
	var all []paragraph
	var current paragraph
	end := func() {
		if current != nil {
			all = append(all, current)
		}
		current = nil
	}
	for _, line := range lines {
		text := strings.TrimSpace(line.text)
		switch {
		case text == "" || rule.MatchString(text) || definition.MatchString(text):
			end()
			continue
		case heading.MatchString(text):
			end()
			all = append(all, paragraph(nil).with(line.line, clean(strings.TrimLeft(text, "# "))))
			continue
		case item.MatchString(text):
			end()
			text = item.ReplaceAllString(text, "")
		}
		current = current.with(line.line, clean(text))
	}
	end()
	return all
}

var (
	rule       = regexp.MustCompile(`^[-=*_#~+]{3,}$`)
	definition = regexp.MustCompile(`^\[[^\]]+\]: *\S+$`)
	heading    = regexp.MustCompile(`^#{1,6} `)
	item       = regexp.MustCompile(`^(?:[-*+•]|\d{1,2}[.)]) +`)
	linked     = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	url        = regexp.MustCompile(`<?\b[a-z]+://[^\s>)]+>?`)
	span       = regexp.MustCompile("`[^`]*`")
)

// clean takes links and code out of a line: a span of code becomes one word.
func clean(text string) string {
	text = span.ReplaceAllStringFunc(text, func(code string) string {
		return "`" + strings.Map(func(r rune) rune {
			if unicode.IsSpace(r) {
				return '_'
			}
			return r
		}, strings.Trim(code, "`")) + "`"
	})
	text = linked.ReplaceAllString(text, "$1")
	return url.ReplaceAllString(text, "URL")
}

var license = regexp.MustCompile(`(?i)copyright|spdx-license|licensed under|all rights reserved`)

func lines(src []byte) []word {
	var all []word
	for line := range bytes.Lines(src) {
		all = append(all, word{strings.TrimRight(string(line), "\r\n"), len(all) + 1})
	}
	return all
}
