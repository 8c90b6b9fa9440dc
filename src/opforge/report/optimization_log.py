"""`optimization_log.md` of an optimisation, from its rounds, in the template of the seeds: English or Chinese."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opforge.core.evidence.optimization import END, KEPT, LOGIC, PARAMETERS, ROUND, START, OptimizationRound, Tried
from opforge.core.language import units

EN: Mapping[str, str] = {
    "title": "Performance optimisation record: {operator}",
    "made": "Rendered from the rounds on record: `opforge log {operator}`. Run {run}, engine {engine}, {device}.",
    "version": "Current version",
    "number": "Version",
    "shape": "Workload",
    "speedup": "Speed-up now",
    "over": "{ratio} over the start",
    "baseline": "{ratio} over {name}",
    "target": "Target",
    "bottleneck": "Bottleneck analysis",
    "analysis": "By `opforge diagnose`",
    "main": "Main bottleneck",
    "change": "Change",
    "kind": "Kind of change",
    PARAMETERS: "performance parameters",
    LOGIC: "code of the kernel",
    "interface": "interface",
    "none": "none",
    "content": "What was tried",
    "why": "Why",
    "problem": "Problem",
    "idea": "Idea",
    "expected": "Expected",
    "unknown": "unknown: no such round is on record",
    "median": "{ratio} (median of such rounds on record)",
    "result": "Result",
    "new": "New speed-up",
    "gain": "Gain of the round, interleaved",
    "reached": "Target reached",
    "yes": "yes",
    "no": "no",
    "decision": "Decision",
    "lessons": "Lessons",
    "worked": "What worked",
    "failed": "What did not",
    "next": "Next",
    "start": "Start",
    "round": "Round {number}",
    "end": "End",
    "candidate": "Candidate",
    "verdict": "Verdict",
    "time": "Time over the best's",
    "reason": "Reason",
    "diff": "The kept change",
    "not timed": "not timed",
    "before": "refused before it ran",
    "afresh": "The best against the start, timed afresh",
    "tokens": "Tokens",
    "seconds": "Seconds",
}
ZH: Mapping[str, str] = {
    "title": "性能优化记录：{operator}",
    "made": "由记录中的各轮渲染：`opforge log {operator} --lang zh`。运行 {run}，引擎 {engine}，设备 {device}。",
    "version": "当前版本信息",
    "number": "版本号",
    "shape": "测试Shape",
    "speedup": "当前加速比",
    "over": "相对起点 {ratio}",
    "baseline": "相对 {name} {ratio}",
    "target": "目标加速比",
    "bottleneck": "性能瓶颈分析",
    "analysis": "使用 `opforge diagnose` 分析结果",
    "main": "主要瓶颈",
    "change": "修改方案",
    "kind": "修改类型",
    PARAMETERS: "性能参数修改",
    LOGIC: "逻辑修改（仅该 kernel 的代码，数学行为不变）",
    "interface": "接口修改",
    "none": "无",
    "content": "修改内容",
    "why": "修改原因",
    "problem": "问题分析",
    "idea": "优化思路",
    "expected": "预期效果",
    "unknown": "未知：记录中没有同类轮次",
    "median": "{ratio}（记录中同类轮次的中位数）",
    "result": "测试结果",
    "new": "新加速比",
    "gain": "本轮提升（交错测量）",
    "reached": "是否达到目标",
    "yes": "是",
    "no": "否",
    "decision": "决定",
    "lessons": "经验总结",
    "worked": "成功经验",
    "failed": "失败教训",
    "next": "后续优化方向",
    "start": "初始状态",
    "round": "第 {number} 轮优化",
    "end": "结束",
    "candidate": "候选",
    "verdict": "判定",
    "time": "相对当前最优的时间",
    "reason": "原因",
    "diff": "保留的修改",
    "not timed": "未计时",
    "before": "运行前即被拒绝",
    "afresh": "最优与起点，重新计时",
    "tokens": "词元",
    "seconds": "秒",
}
LANGUAGES: Mapping[str, Mapping[str, str]] = {"en": EN, "zh": ZH}
STRATEGIES_ZH = {
    "block size": "块大小优化",
    "pipeline depth": "流水线深度优化",
    "warps": "Warp 优化",
    "memory access": "内存访问优化",
    "grid": "网格配置优化",
    "other tunables": "其他可调参数",
    "candidates of a model": "语言模型的候选",
    "replay": "重放",
}
DECISIONS_ZH = {"kept": "保留", "rolled back": "回滚", "stopped": "停止"}


def optimization_log(rounds: Sequence[OptimizationRound], language: str = "en") -> str:
    """The log of one run as Markdown. language: "en" or "zh"; figures, diffs and verdicts are the same in both."""
    words = LANGUAGES[language]
    first = rounds[0]
    lines = [
        f"# {words['title'].format(operator=first.operator)}",
        "",
        words["made"].format(operator=first.operator, run=first.run, engine=first.engine, device=first.device),
    ]
    before = first
    for one in rounds:
        lines += ["", *_round(one, before, words, language)]
        before = one
    return "\n".join(lines).rstrip() + "\n"


def _round(one: OptimizationRound, before: OptimizationRound, words: Mapping[str, str], language: str) -> list[str]:
    strategy = STRATEGIES_ZH.get(one.strategy, one.strategy) if language == "zh" else one.strategy
    heading = {START: words["start"], END: words["end"]}.get(one.stage, words["round"].format(number=one.number))
    version = "v0.0" if one.stage == START else f"v0.{one.number}"
    lines = [
        f"## {heading}{f': {strategy}' if strategy else ''}",
        "",
        f"### {words['version']}",
        f"- {words['number']}: {one.implementation} {version}",
        f"- {words['shape']}: {one.workload}, {one.dtype}",
        f"- {words['speedup']}: {_speedup(before if one.stage == ROUND else one, words)}",
        *(f"- {words['target']}: {target}" for target in (dict(one.options).get("target", ""),) if target != "inf"),
        "",
        f"### {words['bottleneck']}",
        f"{words['analysis']}:",
    ]
    for item in one.diagnosis.evidence:
        wanted = f" ({item.criterion})" if item.criterion else ""
        lines.append(f"- {item.name}: {item.value}{wanted}")
    lines.append(f"- {words['main']}: {one.diagnosis.bottleneck}; {one.diagnosis.because}")
    if one.stage == ROUND:
        lines += ["", *_change(one, words)]
        lines += ["", *_result(one, words, language), "", *_lessons(one, words)]
    if one.stage == END:
        if one.comparison is not None:
            told = one.comparison
            lines += ["", f"{words['afresh']}: {told.outcome}, {_times(told.speedup)} ({told.pairs} A/B)"]
        lines += ["", f"{words['reason']}: {one.reason}"]
    return lines


def _change(one: OptimizationRound, words: Mapping[str, str]) -> list[str]:
    kinds = dict.fromkeys(words.get(item.kind, item.kind) for item in one.tried)
    expected = words["unknown"] if one.expected is None else words["median"].format(ratio=_times(one.expected))
    lines = [
        f"### {words['change']}",
        f"**{words['kind']}**: {', '.join(kinds) or words['none']}",
        "",
        f"**{words['content']}**:",
        "",
        f"| {words['candidate']} | {words['verdict']} | {words['time']} | {words['reason']} |",
        "|---|---|---|---|",
        *(_candidate(item, words) for item in one.tried),
    ]
    kept = next((item for item in one.tried if item.source == one.best), None) if one.decision == KEPT else None
    if kept is not None:
        lines += ["", f"{words['diff']}:", "", "```diff", kept.diff, "```"]
    return [
        *lines,
        "",
        f"**{words['why']}**:",
        f"- {words['problem']}: {one.diagnosis.because}",
        f"- {words['idea']}: {one.hypothesis}",
        f"- {words['expected']}: {expected}",
    ]


def _candidate(item: Tried, words: Mapping[str, str]) -> str:
    verdict = type(item.verdict).__name__ if item.verdict is not None else words["before"]
    ratio = f"{item.ratio:.3f}" if item.ratio is not None else words["not timed"]
    reason = " ".join(item.reason.split()).replace("|", "\\|")[:200]
    return f"| {item.change.replace('|', '/')} | {verdict} | {ratio} | {reason} |"


def _result(one: OptimizationRound, words: Mapping[str, str], language: str) -> list[str]:
    told = one.comparison
    gain = words["not timed"]
    if told is not None:
        gain = (
            f"{100 * (told.speedup - 1):+.1f} % ({told.outcome}, {_times(1 / told.high)} .. {_times(1 / told.low)}, "
            f"{told.pairs} A/B)"
        )
    target = float(dict(one.options).get("target", "inf"))
    ratio = one.over_baseline if one.baseline else one.over_start
    decision = DECISIONS_ZH.get(one.decision, one.decision) if language == "zh" else one.decision
    spent = [f"{words['seconds']}: {one.spent_s:.0f}"] + [f"{words['tokens']}: {one.tokens}"] * (one.tokens > 0)
    return [
        f"### {words['result']}",
        f"- {words['new']}: {_speedup(one, words)}",
        f"- {words['gain']}: {gain}",
        *(
            [f"- {words['reached']}: {words['yes'] if ratio is not None and ratio >= target else words['no']}"]
            if target != float("inf")
            else []
        ),
        f"- {words['decision']}: {decision}; {one.reason}",
        *(f"- {part}" for part in spent),
    ]


def _lessons(one: OptimizationRound, words: Mapping[str, str]) -> list[str]:
    good = [item.change for item in one.tried if one.decision == KEPT and item.source == one.best]
    bad = [
        f"{item.change}: {item.reason or (f'{item.ratio:.2f}' if item.ratio is not None else words['not timed'])}"
        for item in one.tried
        if item.change not in good
    ]
    lines = [f"### {words['lessons']}", f"**{words['worked']}**:"]
    lines += [f"- {text}" for text in good] or [f"- {words['none']}"]
    lines += ["", f"**{words['failed']}**:"]
    lines += [f"- {' '.join(text.split())[:200]}" for text in bad] or [f"- {words['none']}"]
    lines += ["", f"**{words['next']}**:"]
    return lines + [f"- {item.what}: `{item.command}`" for item in one.diagnosis.directions[:2]]


def _speedup(one: OptimizationRound, words: Mapping[str, str]) -> str:
    told = [words["over"].format(ratio=_times(one.over_start))] if one.over_start is not None else []
    if one.over_baseline is not None:
        told.append(words["baseline"].format(ratio=_times(one.over_baseline), name=one.baseline))
    seconds = f" ({units.seconds(one.best_s)})" if one.best_s is not None else ""
    return f"{', '.join(told) or words['not timed']}{seconds}"


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x"
