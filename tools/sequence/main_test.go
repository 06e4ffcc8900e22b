package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const traces = "../../fixtures/traces/openb"

// The published runs' own orders: ten seeds of default, one of the other lists.
func TestPublishedSequences(t *testing.T) {
	files, err := filepath.Glob(traces + "/seq/*.gz")
	if err != nil || len(files) != 26 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		list, seed, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".gz"), ".")
		number, err := strconv.ParseInt(seed, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		nodes := traces + "/openb_node_list_gpu_node.csv.gz"
		pods := traces + "/openb_pod_list_" + list + ".csv.gz"
		if err := write(&got, nodes, pods, number, 1.3); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), unpack(t, file)) {
			t.Errorf("%s, seed %d: another order", list, number)
		}
	}
}

func unpack(t *testing.T, file string) []byte {
	t.Helper()
	packed, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	reader, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(reader)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestBadInputIsNamed(t *testing.T) {
	folder := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := file("good", "sn,gpu\na,1\n")
	for _, check := range []struct{ nodes, pods, want string }{
		{folder + "/none", good, "no such file"},
		{file("empty", ""), good, "there is no header line"},
		{file("column", "sn\na\n"), good, `there is no column "gpu"`},
		{file("number", "sn,gpu\na,x\n"), good, `row 2, column gpu: "x" is not a whole number`},
		{good, good, `there is no column "name"`},
		{good, file("milli", "name,num_gpu,gpu_milli\np,1,0.5\n"), `column gpu_milli: "0.5"`},
		{good, file("packed", "\x1f\x8b nonsense"), "gzip"},
	} {
		err := write(io.Discard, check.nodes, check.pods, 1, 1.3)
		if err == nil || !strings.Contains(err.Error(), check.want) {
			t.Errorf("%v, want %q", err, check.want)
		}
	}
}
