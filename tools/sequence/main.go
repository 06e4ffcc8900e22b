// Command sequence writes the order of arrival that the published results of FGD (Weng et al.,
// USENIX ATC 2023) were made with: `sublet simulate --sequence` then replays those very runs.
//
// The published seeds are streams of Go's math/rand, spent in the order in which the authors'
// simulator spends them; that is all this program is. Seeds of Sublet's own need none of it.
package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"flag"
	"fmt"
	"io"
	"math/rand"
	"os"
	"sort"
	"strconv"
)

// The informers of the published simulator draw a time-out each before nodes are ranked.
const informers = 10

type task struct {
	name string
	row  int
	// Of each GPU, and of all together, in thousandths.
	milli, total int64
}

func main() {
	nodes := flag.String("nodes", "", "node list (CSV, plain or gzip)")
	pods := flag.String("pods", "", "pod list (CSV, plain or gzip)")
	seed := flag.Int64("seed", 42, "seed of the published run")
	ratio := flag.Float64("ratio", 1.3, "GPU share that arrives, of the cluster's")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(),
			"Writes the order of arrival of a published run to standard output.\n\n"+
				"  sequence -nodes nodes.csv.gz -pods pods.csv.gz -seed 42 > order\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if *nodes == "" || *pods == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := write(os.Stdout, *nodes, *pods, *seed, *ratio); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func write(out io.Writer, nodeFile, podFile string, seed int64, ratio float64) error {
	capacity, ranksOf, err := readNodes(nodeFile)
	if err != nil {
		return err
	}
	tasks, err := readTasks(podFile)
	if err != nil {
		return err
	}
	random := rand.New(rand.NewSource(seed))
	random.Int()
	arrivals := arrive(random, tasks, int64(float64(capacity)*ratio))
	for range informers {
		random.Float64()
	}
	buffer := bufio.NewWriter(out)
	fmt.Fprint(buffer, "nodes")
	for _, rank := range ranksOf(random) {
		fmt.Fprint(buffer, " ", rank)
	}
	fmt.Fprint(buffer, "\npods")
	for _, row := range arrivals {
		fmt.Fprint(buffer, " ", row)
	}
	fmt.Fprintln(buffer)
	return buffer.Flush()
}

// arrive shuffles the tasks and adds or removes some until they ask for the target.
func arrive(random *rand.Rand, tasks []task, target int64) []int {
	sort.SliceStable(tasks, func(i, j int) bool { return tasks[i].name < tasks[j].name })
	order := append([]task(nil), tasks...)
	random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	var sum int64
	for _, one := range order {
		sum += one.total
	}
	if sum > target {
		for sum > target {
			at := random.Intn(len(order))
			sum -= order[at].total
			order = append(order[:at], order[at+1:]...)
		}
	} else if sum > 0 {
		for {
			next := tasks[random.Intn(len(tasks))]
			// One GPU's share: a task of eight may go beyond by the other seven.
			if sum+next.milli > target {
				break
			}
			order = append(order, next)
			sum += next.total
		}
	}
	rows := make([]int, len(order))
	for i, one := range order {
		rows[i] = one.row
	}
	return rows
}

func readNodes(file string) (capacity int64, ranks func(*rand.Rand) []int, err error) {
	rows, err := read(file, "sn", "gpu")
	if err != nil {
		return 0, nil, err
	}
	byName := make([]int, len(rows))
	for i, row := range rows {
		gpus, err := number(row[1])
		if err != nil {
			return 0, nil, fmt.Errorf("%s: row %d, column gpu: %w", file, i+2, err)
		}
		capacity += 1000 * gpus
		byName[i] = i
	}
	sort.SliceStable(byName, func(i, j int) bool { return rows[byName[i]][0] < rows[byName[j]][0] })
	return capacity, func(random *rand.Rand) []int {
		ranks := make([]int, len(rows))
		for i, rank := range random.Perm(len(rows)) {
			ranks[byName[i]] = rank
		}
		return ranks
	}, nil
}

func readTasks(file string) ([]task, error) {
	rows, err := read(file, "name", "num_gpu", "gpu_milli")
	if err != nil {
		return nil, err
	}
	tasks := make([]task, len(rows))
	for i, row := range rows {
		gpus, err := number(row[1])
		if err != nil {
			return nil, fmt.Errorf("%s: row %d, column num_gpu: %w", file, i+2, err)
		}
		milli, err := number(row[2])
		if err != nil {
			return nil, fmt.Errorf("%s: row %d, column gpu_milli: %w", file, i+2, err)
		}
		milli = min(milli, 1000)
		if gpus == 0 {
			milli = 0
		}
		tasks[i] = task{name: row[0], row: i, milli: milli, total: gpus * milli}
	}
	return tasks, nil
}

func number(text string) (int64, error) {
	value, err := strconv.ParseFloat(text, 64)
	if err != nil || value < 0 || value != float64(int64(value)) {
		return 0, fmt.Errorf("%q is not a whole number", text)
	}
	return int64(value), nil
}

// read gives these columns of a table, row by row.
func read(file string, columns ...string) ([][]string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if bytes.HasPrefix(content, []byte{0x1f, 0x8b}) {
		unpacked, err := gzip.NewReader(bytes.NewReader(content))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if content, err = io.ReadAll(unpacked); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	all, err := csv.NewReader(bytes.NewReader(content)).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: there is no header line", file)
	}
	at := make([]int, len(columns))
	for i, column := range columns {
		at[i] = -1
		for j, name := range all[0] {
			if name == column {
				at[i] = j
			}
		}
		if at[i] < 0 {
			return nil, fmt.Errorf("%s: there is no column %q", file, column)
		}
	}
	rows := make([][]string, 0, len(all)-1)
	for _, record := range all[1:] {
		row := make([]string, len(columns))
		for i := range columns {
			row[i] = record[at[i]]
		}
		rows = append(rows, row)
	}
	return rows, nil
}
