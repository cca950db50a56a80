from .celery import app


@app.task
def square(n):
    return n * n


@app.task
def total(numbers):
    return sum(numbers)


@app.task(ignore_result=True)
def note(line):
    print(line)
