"""The study file that `velodrome study new` writes: a small study that runs as it is, with a comment for each part."""

STARTER = """\
# A study: races, where each setting comes from, published figures, and claims that runs confirm or refute.
# Show it with `velodrome study show ./NAME.yaml`, run it with `velodrome study run ./NAME.yaml`.
name: NAME
title: One worker against two on handwritten digits
source: Author 2026, Title, where it was published
machines: what it ran on, as published

notes:
  - what a reader must know who compares the figures

# Jobs, as in a race: what `vary` lists is multiplied. A study names data, model, engine, strategy, batch and epochs of
# each. `added: true` in an entry marks what was not part of the document.
races:
  - job: {dataset: digits, model: dense-128, epochs: 5, batch_size: 64}
    vary:
      entry:
        - {engine: torch, strategy: allreduce, workers: 1}
        - {engine: torch, strategy: allreduce, workers: 2}

# How it is scaled down: `job` replaces fields, `most` caps them, `only` keeps some of the values.
scales:
  full: {}
  small: {job: {epochs: 2}}
  smoke: {job: {epochs: 1}}

# Each setting is published (with its place in the document), assumed (why) or ours (why). The last rule that fits a
# configuration decides; `of` restricts a rule to some of them.
settings:
  - {fields: [dataset, model, epochs], published: section 3}
  - {fields: [workers], published: table 1}
  - {fields: [batch_size], assumed: the document does not state it}
  - {fields: [engine, strategy], ours: any engine computes the same}

# Numbers of one configuration each; `cpu: {min: 1, mean: 2, max: 3}` for a quantity over time, a value for each epoch
# under `epochs`.
figures:
  - of: {workers: 1}
    place: table 1
    values: {accuracy: 0.94, seconds: 10.0}
    epochs: {train_accuracy: [0.60, 0.85, 0.90, 0.92, 0.94]}

# A quantity over a field.
curves:
  - of: {engine: torch}
    over: workers
    place: figure 2
    values: {speedup: {1: 1.0, 2: 1.8}}

# Conclusions in your words, with their place. Kinds of checks: compare, largest, level, scales and flattens; all of a
# claim's must hold. A claim that no run can check has `unchecked: the reason` in their place.
claims:
  - text: two workers have a higher throughput than one
    place: section 4
    checks:
      - {kind: compare, measure: throughput, of: {workers: 2}, than: {workers: 1}, is: more}
    explanations:
      - what could explain that your runs disagree
  - text: the accuracy does not depend on the number of workers
    place: section 4
    checks:
      - {kind: compare, measure: accuracy, of: {workers: 2}, than: {workers: 1}, is: same, within: 0.01}
"""
