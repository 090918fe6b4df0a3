package server

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of the times in /proc: USER_HZ, which is 100 on every
// architecture that Go knows.
const clockTick = 10 * time.Millisecond

// CPU returns the processor time of a process and its descendants, including the descendants that
// have ended and were waited for. For running processes it is exact to the nanosecond.
func CPU(pid int) (time.Duration, error) {
	stat, err := readStat(pid)
	if err != nil {
		return 0, err
	}
	total := stat.ended
	for _, p := range tree(pid) {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p))
		if err != nil {
			return 0, err
		}
		for _, thread := range threads {
			schedstat, err := os.ReadFile(thread)
			if err != nil {
				continue // ended since; its parent has its time
			}
			ns, err := strconv.ParseInt(strings.Fields(string(schedstat))[0], 10, 64)
			if err != nil {
				return 0, err
			}
			total += time.Duration(ns)
		}
	}
	return total, nil
}

// Memory returns how many bytes of the machine's memory a process has.
func Memory(pid int) (int64, error) {
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	pages, err := strconv.ParseInt(strings.Fields(string(statm))[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

type stat struct {
	parent int
	ended  time.Duration // the time of children that have ended
}

func readStat(pid int) (s stat, err error) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s, err
	}
	// The name, in brackets, may hold anything. After it come the state, the parent, ...
	fields := strings.Fields(string(line[bytes.LastIndexByte(line, ')')+1:]))
	if s.parent, err = strconv.Atoi(fields[1]); err != nil {
		return s, err
	}
	for _, field := range fields[13:15] { // cutime and cstime
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return s, err
		}
		s.ended += time.Duration(ticks) * clockTick
	}
	return s, nil
}

// tree returns a process and all below it.
func tree(pid int) []int {
	below := map[int][]int{}
	entries, _ := os.ReadDir("/proc") // of nothing there is nothing below
	for _, entry := range entries {
		child, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if s, err := readStat(child); err == nil {
			below[s.parent] = append(below[s.parent], child)
		}
	}
	pids := []int{pid}
	for i := 0; i < len(pids); i++ {
		pids = append(pids, below[pids[i]]...)
	}
	return pids
}
