// Prometheus' own rules and engine: checks a file of alert rules, and prints which alerts hold at the last of some scrapes.
//
//	main RULES SCRAPE...    each scrape is a file in Prometheus' text format, a minute after the one before
//
// Prints a line of JSON for each alert: its name and its labels. Fails where Prometheus would refuse the rules.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/tsdb"
)

func main() {
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

func run(path string, scrapes []string) error {
	expressions := parser.NewParser(parser.Options{})
	groups, errs := rulefmt.ParseFile(path, false, model.UTF8Validation, expressions, slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	directory, err := os.MkdirTemp("", "prometheus")
	if err != nil {
		return err
	}
	defer os.RemoveAll(directory)
	store, err := tsdb.Open(directory, slog.New(slog.DiscardHandler), nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		return err
	}
	defer store.Close()
	at := time.Now().Add(-time.Hour).Truncate(time.Minute)
	for _, scrape := range scrapes {
		at = at.Add(time.Minute)
		if err := load(store, scrape, at); err != nil {
			return fmt.Errorf("%s: %w", scrape, err)
		}
	}
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1_000_000, Timeout: time.Minute})
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			if err := evaluate(engine, store, rule, at); err != nil {
				return fmt.Errorf("%s: %w", rule.Alert, err)
			}
		}
	}
	return nil
}

func evaluate(engine *promql.Engine, store *tsdb.DB, rule rulefmt.Rule, at time.Time) error {
	query, err := engine.NewInstantQuery(context.Background(), store, nil, rule.Expr, at)
	if err != nil {
		return err
	}
	defer query.Close()
	found, err := query.Exec(context.Background()).Vector()
	if err != nil {
		return err
	}
	for _, each := range found {
		line, err := json.Marshal(map[string]any{"alert": rule.Alert, "labels": each.Metric.Map()})
		if err != nil {
			return err
		}
		fmt.Println(string(line))
	}
	return nil
}

func load(store *tsdb.DB, path string, at time.Time) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	added := store.Appender(context.Background())
	read := textparse.NewPromParser(text, labels.NewSymbolTable(), false)
	for {
		entry, err := read.Next()
		if errors.Is(err, io.EOF) {
			return added.Commit()
		}
		if err != nil {
			return err
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var series labels.Labels
		_, _, value := read.Series()
		read.Labels(&series)
		if math.IsNaN(value) {
			value = math.NaN()
		}
		if _, err := added.Append(0, series, at.UnixMilli(), value); err != nil {
			return err
		}
	}
}
