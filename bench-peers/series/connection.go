package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"
)

// A connection that stays, with one request under way: less to do for the client, who shares the machine, than net/http's. (One
// on a socket that blocks, with a thread of its own, has more to do when there are four.)
type connection struct {
	address string
	conn    net.Conn
	in      *bufio.Reader
	head    []byte
	// The body of the last answer.
	body bytes.Buffer
}

func dial(address string) (*connection, error) {
	conn, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return nil, err
	}
	return &connection{address: address, conn: conn, in: bufio.NewReaderSize(conn, 64<<10)}, nil
}

func (it *connection) close() {
	// Nothing is under way.
	_ = it.conn.Close()
}

// Asks, and takes the whole answer; what is not 200 or 204 is an error.
func (it *connection) ask(method, path string, body []byte) error {
	it.head = append(append(append(it.head[:0], method...), ' '), path...)
	it.head = append(append(it.head, " HTTP/1.1\r\nHost: "...), it.address...)
	if method == "POST" {
		it.head = strconv.AppendInt(append(it.head, "\r\nContent-Length: "...), int64(len(body)), 10)
	}
	it.head = append(it.head, "\r\n\r\n"...)
	if err := it.conn.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		return err
	}
	var err error
	if len(body) < 4096 {
		it.head = append(it.head, body...)
		_, err = it.conn.Write(it.head)
	} else {
		parts := net.Buffers{it.head, body}
		_, err = parts.WriteTo(it.conn)
	}
	if err != nil {
		return err
	}
	answer, err := http.ReadResponse(it.in, nil)
	if err != nil {
		return err
	}
	it.body.Reset()
	_, err = it.body.ReadFrom(answer.Body)
	if closed := answer.Body.Close(); err == nil {
		err = closed
	}
	if err == nil && answer.StatusCode != http.StatusOK && answer.StatusCode != http.StatusNoContent {
		err = fmt.Errorf("%s %.200s: %s: %.500s", method, path, answer.Status, it.body.String())
	}
	return err
}
