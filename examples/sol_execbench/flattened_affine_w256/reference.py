def run(x, weight, bias):
    return x * weight + bias
